"""A text web shop after the published description: catalogue, search, pages, graded reward, expert."""
