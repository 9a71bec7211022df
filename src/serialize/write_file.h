// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>

#include <lockstep/serialize/torch_file.h>

#include "serialize/pickler.h"

namespace lockstep::serialize {

/// The second half of save(): what was pickled, into a file.
void write_file(const Pickled& pickled, const std::filesystem::path& file, const SaveOptions& options);

}  // namespace lockstep::serialize
