# SPDX-License-Identifier: BSD-3-Clause
# Makes the text of a file a constant of C++: cmake -DINPUT=<file> -DOUTPUT=<.cpp> -DHEADER=<header that declares it>
# -DNAMESPACE=<namespace> -DNAME=<std::string_view> -P EmbedText.cmake
file(READ "${INPUT}" text)
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT [[// Made of @INPUT@ by cmake/EmbedText.cmake.
#include "@HEADER@"

namespace @NAMESPACE@ {

const std::string_view @NAME@ = R"EMBEDDED(@text@)EMBEDDED";

}
]] @ONLY)
