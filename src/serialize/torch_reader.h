// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/serialize/torch_file.h>

#include "serialize/byte_source.h"

namespace lockstep::serialize {

// load() of a whole source.
Value load_source(const ByteSource& source, const LoadOptions& options);

// The zip format of torch.save.
Value load_zip(const ByteSource& source, const LoadOptions& options);
// The format of torch.save before PyTorch 1.6, which it still writes on request: five pickles, then the
// storages.
Value load_legacy(const ByteSource& source, const LoadOptions& options);

}  // namespace lockstep::serialize
