"""Code that all other modules use: frozen classes, checks of arguments, small linear algebra, matrices."""
