"""What the scripts share: data sets, jobs and their files, tables, figures, timing."""
