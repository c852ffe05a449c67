"""What goes with an allocation and stands in no plan, script, status, event or log: secrets, and the patch. Pure."""
