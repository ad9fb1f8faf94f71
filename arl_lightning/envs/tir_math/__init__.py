"""Tool-integrated maths: problems answered in a box, with the help of programs that run in a sandbox."""
