"""What is known about trees of checkpoints -> one page of HTML that needs no network."""
