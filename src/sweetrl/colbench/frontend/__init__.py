"""People who look at pages: what is on a page, how two pages differ, and who says so."""
