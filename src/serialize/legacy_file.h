// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/serialize/torch_file.h>

#include "serialize/byte_source.h"

namespace lockstep::serialize {

/// The value in a file as torch.save wrote them before PyTorch 1.6, and still does when asked: five pickles,
/// then the storages one after the other.
Value load_legacy(const ByteSource& source, const LoadOptions& options);

}  // namespace lockstep::serialize
