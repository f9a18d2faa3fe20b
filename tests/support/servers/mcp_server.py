"""``python mcp_server.py [PORT]``: an MCP server, made with the package ``mcp``, over pipes or over HTTP at a port."""

import os
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("probe", log_level="CRITICAL")
_calls = 0


@server.tool()
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def count() -> str:
    """Count the calls of this process."""
    global _calls  # noqa: PLW0603
    _calls += 1
    return f"{_calls} of {os.getpid()}"


@server.tool()
def end(status: int) -> str:
    os._exit(status)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
