"""What ``benchmarks.peers`` runs in environments of their own."""
