"""Questions to the tables, as SQL: functions of an open connection."""
