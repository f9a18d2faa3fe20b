"""What of a machine would keep a mesh from working: facts are gathered, judged without asking again, and told."""
