"""Records of real jobs (dumps of torch's flight recorder, torchcomms' clogs): find the files, open them safely, read
them, and make scenarios from them."""
