# Options, each AUTO | ON | OFF: AUTO takes a feature where its library is
# found, ON fails without it, OFF leaves it out. They choose lists of sources;
# no header carries a feature macro.
foreach(feature CUDA NCCL TORCH PMEM)
  set(TERRACE_${feature} AUTO CACHE STRING "AUTO, ON or OFF")
  set_property(CACHE TERRACE_${feature} PROPERTY STRINGS AUTO ON OFF)
  if(NOT TERRACE_${feature} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR
      "TERRACE_${feature} is AUTO, ON or OFF, not '${TERRACE_${feature}}'")
  endif()
endforeach()
option(TERRACE_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
set(TERRACE_SANITIZE "" CACHE STRING "e.g. address,undefined or thread")

find_program(TERRACE_CCACHE ccache)
if(TERRACE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${TERRACE_CCACHE}")
endif()

add_library(terrace_sanitize INTERFACE)
if(TERRACE_SANITIZE)
  target_compile_options(terrace_sanitize INTERFACE
    -fsanitize=${TERRACE_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=undefined)
  target_link_options(terrace_sanitize INTERFACE
    -fsanitize=${TERRACE_SANITIZE})
endif()

find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET liburing>=2.3)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc>=2.9)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)

if(TERRACE_TORCH STREQUAL "OFF")
  set(TerraceTorch_FOUND FALSE)
elseif(TERRACE_TORCH STREQUAL "ON")
  find_package(TerraceTorch REQUIRED)
else()
  find_package(TerraceTorch QUIET)
endif()
