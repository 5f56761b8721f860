"""Every setting declared once, where its value comes from, and what text means as a value."""
