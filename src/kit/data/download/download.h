// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "data/download/dataset_files.h"

namespace lockstep::data {

// Downloads the files of the dataset that are missing or damaged in `folder`, from the first source that has
// them. A file appears under its name complete and verified, or not at all. One process downloads at a time;
// the others wait. Throws DataError listing the failure of each source, and TimeoutError when another process
// holds the lock until options.timeout.
void download_dataset(const RemoteDataset& dataset, const std::filesystem::path& folder,
                      const DownloadOptions& options);

// Downloads an http, https or file URL to `file` and follows redirects. Throws DataError: no connection
// within `connect_timeout`, an HTTP error status, a stalled transfer, or the deadline.
void download_url(const std::string& url, const std::filesystem::path& file, const Deadline& deadline,
                  std::chrono::milliseconds connect_timeout);

// Runs a command from the PATH in `folder`, without stdin, and waits for it. The command does not outlive
// this process. Throws DataError with the end of its output when it cannot be started or fails; kills it and
// throws at the deadline.
void run_in_folder(const std::filesystem::path& folder, const std::vector<std::string>& command,
                   const Deadline& deadline);

}  // namespace lockstep::data
