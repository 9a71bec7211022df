// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

#include "serialize/zip_reader.h"

namespace lockstep::serialize {

/// Throws CheckpointError naming the record unless its bytes have its checksum. A checksum of 0 is none:
/// Python leaves them out when told so.
void check_crc(const ZipReader& zip, std::string_view name, const ZipRecord& record);

}  // namespace lockstep::serialize
