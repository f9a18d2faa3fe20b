"""Experience groups: columns, rules, how they are built, split, joined and judged."""
