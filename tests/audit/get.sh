#!/bin/sh
# Fetches the packages and checkouts that audit.py judges: get.sh FOLDER [PYTHON]. Nothing of them is copied into the tree.
set -eu
folder=$1
python=${2:-python3}
"$python" -m pip install --no-deps --target "$folder/packages" ring-flash-attn==0.1.8 yunchang==0.6.4 \
  ring-attention-pytorch==0.5.20 axolotl-ringmaster==0.2.7 einops==0.8.2 beartype==0.23.1 jaxtyping==0.3.11 \
  diffusers==0.42.1 importlib_metadata zipp pillow requests urllib3 certifi charset_normalizer
while read -r name commit; do
  checkout=$folder/$(echo "$name" | tr / +)
  git init --quiet "$checkout"
  git -C "$checkout" fetch --quiet --depth 1 "https://github.com/$name" "$commit"
  git -C "$checkout" checkout --quiet FETCH_HEAD
done << 'END'
hpcaitech/ColossalAI 4f9953be335ef371b3848719ddafe596c01ecd37
huggingface/nanotron 2411b022a75fb7f7561a1bb4166706da5e1b76de
huggingface/picotron 59714b1bf25541dbeb6f5a721ed15f6d0768e786
modelscope/ms-swift 3602360a562313afbf2ef6065fdf61f271a2c5b9
verl-project/verl 1dda039b9c6311889a9c9a26040677e1254814f9
xdit-project/xDiT 175e0bfec974d0b44a0be9fa511df2f9f5ead080
deepspeedai/DeepSpeed edaa7221267243c7be7fb49c5d5f5c4fb97b4641
END
