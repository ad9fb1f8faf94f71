"""Watch and steer: filtering, KL, collapse warning, transcripts, progress."""
