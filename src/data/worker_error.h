// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <string>
#include <typeinfo>

namespace lockstep::data {

// `error`, the same object of the same type, whose message now says where it was caught: "Caught X in
// <where>: <message>". An exception whose message cannot be changed stays as it is, and is written to the
// log.
std::exception_ptr described_error(std::exception_ptr error, const std::string& where);

// The name of a type as it is written in C++.
std::string type_text(const std::type_info& type);

}  // namespace lockstep::data
