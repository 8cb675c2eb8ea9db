"""Files that engines read and write: import and export."""
