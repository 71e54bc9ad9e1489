"""Components of notebook cells, as they come with a run folder."""

import os

from kdlab.cluster import notebook_components
from kdlab.codec import from_json
from kdlab.experiment.folder import RunFolder


def accept_components(folder: RunFolder) -> None:
    """Define notebook components, if they are those the starting process named."""
    named = from_json(dict[str, str], os.environ.get("KDLAB_COMPONENTS", "{}").encode())
    trusted = {
        name: {"source": entry["source"], "sha256": named.get(name, "nobody named it")}
        for name, entry in folder.components().items()
    }
    notebook_components.define_components(trusted)
