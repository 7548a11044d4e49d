"""What is shown to whoever waits: lines, tables, progress; and what goes into a log."""
