"""`jobd ticket`: command (new, edit, list, show, trail, watch), decide (approve and the others), fields, show."""
