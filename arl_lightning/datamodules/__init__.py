"""Where rows come from: play, conversation, collation, demonstrations."""
