// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "serialize/zip_reader.h"

namespace lockstep::serialize {

/// Throws CheckpointError naming the record unless the bytes of every record have its checksum. A file
/// without any, as Python writes it when told so, has nothing to compare.
void verify_checksums(const ZipReader& zip);

}  // namespace lockstep::serialize
