"""Where nests write: straight to the memory that their results would be copied to."""
