"""What a script of one paper consists of, where it is too long for one file: a folder a script."""
