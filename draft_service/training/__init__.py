"""Trains what `draft_service/drafters` serves: data that the target writes itself, losses, one loop for all drafts."""
