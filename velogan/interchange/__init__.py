"""Models for others and from others: import, export, the hub, and the card that says what they are."""
