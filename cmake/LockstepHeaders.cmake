# SPDX-License-Identifier: BSD-3-Clause
# LibTorch's include folder also holds headers of other projects: fmt, pybind11, in some builds nlohmann-json and Gloo,
# each in the version that LibTorch was built with. Which of two copies is used must not depend on the order of include
# folders, in which /usr/include is always the last. Therefore the decided ones are linked into one folder, which every
# target of this build searches before any other system folder.
include_guard()

# lockstep_prefer_headers(<name> <header> <folder>...): the first of these folders that has <name>/<header> provides
# <name>/ for this build. Sets <name>_HEADERS for the caller: that folder, or "" if none of them has it.
function(lockstep_prefer_headers name header)
  find_path(found "${name}/${header}" PATHS ${ARGN} NO_DEFAULT_PATH NO_CACHE)
  if(found)
    string(REGEX REPLACE "(.)/+$" "\\1" found "${found}")
    file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/preferred_headers")
    file(CREATE_LINK "${found}/${name}" "${PROJECT_BINARY_DIR}/preferred_headers/${name}" SYMBOLIC)
    set(${name}_HEADERS "${found}" PARENT_SCOPE)
  else()
    file(REMOVE "${PROJECT_BINARY_DIR}/preferred_headers/${name}")
    set(${name}_HEADERS "" PARENT_SCOPE)
  endif()
endfunction()

# lockstep_decide_headers(): fmt and nlohmann-json are those that find_package() found. pybind11 is LibTorch's: only its
# types are those of torch. src/foundation/base/fmt.cpp compiles fmt for all files; releases that it does not know are
# compiled in every file.
function(lockstep_decide_headers)
  get_target_property(folders fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
  lockstep_prefer_headers(fmt core.h ${folders})
  get_target_property(folders nlohmann_json::nlohmann_json INTERFACE_INCLUDE_DIRECTORIES)
  lockstep_prefer_headers(nlohmann json.hpp ${folders})
  lockstep_prefer_headers(pybind11 pybind11.h "${LOCKSTEP_LIBTORCH_PREFIX}/include")
  foreach(name fmt nlohmann)
    if(NOT ${name}_HEADERS)
      message(FATAL_ERROR "  The package of ${name} names no folder with its headers: reinstall libfmt-dev and nlohmann-json3-dev, or set ${name}_DIR to another installation.")
    endif()
  endforeach()
  if(fmt_VERSION VERSION_LESS 9 OR fmt_VERSION VERSION_GREATER_EQUAL 13
      OR (fmt_VERSION VERSION_GREATER_EQUAL 11 AND fmt_VERSION VERSION_LESS 11.1)) # 11.0 has not been tried
    add_compile_definitions(FMT_HEADER_ONLY)
  endif()
  message(STATUS "Headers: fmt ${fmt_VERSION} in ${fmt_HEADERS}, nlohmann-json ${nlohmann_json_VERSION} in ${nlohmann_HEADERS}")
endfunction()
