"""How much of an exchange hides behind the sums."""
