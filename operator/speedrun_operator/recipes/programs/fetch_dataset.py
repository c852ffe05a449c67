"""fetch_dataset.py DATASET: fetch the files that $SPEEDRUN_DATA_FILES names into $SPEEDRUN_DATA, those it lacks.

From the Hugging Face Hub, with HF_TOKEN if it is set. A file has its name once it is whole.
"""

import os
import sys

from huggingface_hub import hf_hub_download

folder = os.environ["SPEEDRUN_DATA"]
for name in os.environ["SPEEDRUN_DATA_FILES"].split():
    if not os.path.exists(os.path.join(folder, name)):
        hf_hub_download(sys.argv[1], name, repo_type="dataset", local_dir=folder)
        print(name, flush=True)
