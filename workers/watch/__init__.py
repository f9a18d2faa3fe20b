"""What goes on in a mesh, seen through its topics as any client sees it: the demo's live view and ``status``."""

from workers.watch.state import BatchView, ExplorerView, MeshView, StepView, SyncView

__all__ = ["BatchView", "ExplorerView", "MeshView", "StepView", "SyncView"]
