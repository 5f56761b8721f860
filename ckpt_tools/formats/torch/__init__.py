"""What ``torch.save`` writes."""
