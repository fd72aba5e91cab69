"""The known routing policies, one file each, and ours."""
