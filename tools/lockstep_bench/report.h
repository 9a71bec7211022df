// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "measure.h"

namespace lockstep::bench {

std::string table_header();
std::string table_line(const Row& row);
std::string csv_header();
std::string csv_line(const Row& row);
/// A JSON array with an object for each row.
std::string json_text(const std::vector<Row>& rows);

}  // namespace lockstep::bench
