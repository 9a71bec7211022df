// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/serialize/torch_file.h>

#include "serialize/byte_source.h"

namespace lockstep::serialize {

/// The value in a zip file as torch.save writes them.
Value load_zip(const ByteSource& source, const LoadOptions& options);

}  // namespace lockstep::serialize
