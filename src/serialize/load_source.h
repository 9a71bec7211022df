// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/serialize/torch_file.h>

#include "serialize/byte_source.h"

namespace lockstep::serialize {

/// load() of what a source has from its beginning to its end.
Value load_source(const ByteSource& source, const LoadOptions& options);

}  // namespace lockstep::serialize
