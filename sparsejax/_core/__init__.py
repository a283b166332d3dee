"""What everything else stands on: frozen classes, checks of arguments, small linear algebra, the layout."""
