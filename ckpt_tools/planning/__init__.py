"""Which checkpoint a job resumes from, which file each of its ranks loads, and why."""
