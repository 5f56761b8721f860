"""What several families of formats share."""
