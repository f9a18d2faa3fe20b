"""What fields of records hold, and the limits of it: data of free form, items by the thousand, memory."""
