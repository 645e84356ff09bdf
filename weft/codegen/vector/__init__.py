"""Mathematical functions that vectorise, with their error bounds."""
