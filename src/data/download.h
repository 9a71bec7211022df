// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>

#include "data/known_files.h"

namespace lockstep::data {

/// Fetches those of the dataset's files that `folder` lacks or has damaged, from the first source that gives
/// them. Each appears under its name whole and with the right hash, or not at all. One process at a time does
/// it, the others wait and find it done. Throws DataError listing each source and why it failed, and
/// TimeoutError when another process holds the lock until options.timeout.
void download_known_files(const KnownDataset& dataset, const std::filesystem::path& folder,
                          const LoadOptions& options);

}  // namespace lockstep::data
