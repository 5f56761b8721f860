"""Results -> one page of HTML that needs no network: ``data`` says what is in it, ``page`` how it looks."""
