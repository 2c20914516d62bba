# Features, each AUTO | ON | OFF: AUTO takes it where its library is found and
# says what it did, ON fails without it, OFF leaves it out. They choose lists
# of sources; no header carries a feature macro.
foreach(feature CUDA NCCL TORCH PMEM)
  set(TERRACE_${feature} AUTO CACHE STRING "AUTO, ON or OFF")
  set_property(CACHE TERRACE_${feature} PROPERTY STRINGS AUTO ON OFF)
  if(NOT TERRACE_${feature} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR
      "TERRACE_${feature} is AUTO, ON or OFF, not '${TERRACE_${feature}}'")
  endif()
endforeach()
option(TERRACE_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TERRACE_PROGRAMS "Build programs: examples, benchmarks, the daemon" ON)
if(TERRACE_TESTS AND NOT TERRACE_PROGRAMS)
  message(FATAL_ERROR "TERRACE_TESTS needs TERRACE_PROGRAMS, which they test")
endif()
set(TERRACE_SANITIZE "" CACHE STRING "e.g. address,undefined or thread")

find_program(TERRACE_CCACHE ccache)
if(TERRACE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
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

# The same list in cmake/terrace-config.cmake.in.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET liburing>=2.3)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc>=2.9)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
find_program(TERRACE_FLATC flatc REQUIRED)
# The daemon's, so that cmake/terrace-config.cmake.in has none of it.
if(TERRACE_PROGRAMS)
  pkg_check_modules(tomlplusplus REQUIRED IMPORTED_TARGET tomlplusplus)
  pkg_check_modules(spdlog REQUIRED IMPORTED_TARGET spdlog)
  pkg_check_modules(libsystemd REQUIRED IMPORTED_TARGET libsystemd)
  pkg_check_modules(prometheus REQUIRED IMPORTED_TARGET prometheus-cpp-core)
endif()

# terrace_feature(NAME SOURCE-FOLDER FOUND WHY-NOT): sets TERRACE_HAVE_NAME. A
# feature is on only where this tree has sources for it and its library is
# there.
function(terrace_feature name folder found why_not)
  set(enabled FALSE)
  set(reason "TERRACE_${name} is OFF")
  if(NOT TERRACE_${name} STREQUAL "OFF")
    if(NOT found)
      set(reason "${why_not}")
    elseif(NOT EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}")
      set(reason "found, but this version has no ${folder} that would use it")
    else()
      set(enabled TRUE)
    endif()
    if(NOT enabled AND TERRACE_${name} STREQUAL "ON")
      message(FATAL_ERROR "TERRACE_${name}=ON cannot be had: ${reason}. "
        "With AUTO or OFF Terrace is built without it.")
    endif()
  endif()
  if(enabled)
    message(STATUS "Terrace: ${name} on")
  else()
    message(STATUS "Terrace: ${name} off (${reason})")
  endif()
  set(TERRACE_HAVE_${name} ${enabled} PARENT_SCOPE)
endfunction()

if(NOT TERRACE_NCCL STREQUAL "OFF")
  find_path(TERRACE_NCCL_INCLUDE nccl.h)
  find_library(TERRACE_NCCL_LIBRARY nccl)
endif()
set(nccl_found FALSE)
if(TERRACE_NCCL_INCLUDE AND TERRACE_NCCL_LIBRARY)
  set(nccl_found TRUE)
endif()
terrace_feature(NCCL kernels/cuda/nccl_collective.cc ${nccl_found}
  "no nccl.h and libnccl")

if(NOT TERRACE_PMEM STREQUAL "OFF")
  pkg_check_modules(libpmem2 QUIET IMPORTED_TARGET libpmem2)
endif()
terrace_feature(PMEM tiers/pmem/persist_domain.cc "${libpmem2_FOUND}"
  "no libpmem2; scripts/bootstrap installs libpmem2-dev")
set(TERRACE_PMEM_MODULE)  # of cmake/terrace-config.cmake.in
if(TERRACE_HAVE_PMEM)
  set(TERRACE_PMEM_MODULE libpmem2)
endif()

# Before LibTorch, which may need a header of it.
if(NOT TERRACE_CUDA STREQUAL "OFF" AND NOT TERRACE_CUDA_RUNTIME STREQUAL "LIBTORCH")
  find_package(CUDAToolkit QUIET)
endif()
# TerraceTorch_FOUND is what the folders that need LibTorch ask.
if(TERRACE_TORCH STREQUAL "OFF")
  set(TerraceTorch_FOUND FALSE)
elseif(TERRACE_TORCH STREQUAL "ON")
  find_package(TerraceTorch REQUIRED)
else()
  find_package(TerraceTorch QUIET)
endif()
if(TerraceTorch_FOUND)
  message(STATUS "Terrace: TORCH on (${TerraceTorch_VERSION} in "
    "${TERRACE_TORCH_ROOT})")
elseif(TERRACE_TORCH STREQUAL "OFF")
  message(STATUS "Terrace: TORCH off (TERRACE_TORCH is OFF)")
else()
  message(STATUS "Terrace: TORCH off (no LibTorch; scripts/bootstrap "
    "installs it, TERRACE_TORCH_ROOT names one)")
endif()

# The runtime that CUDA's module has: one of its own, from a toolkit; or LibTorch's,
# in a package for programs that have that in any case, so that a process has
# one. Then no toolkit is asked for.
set(TERRACE_CUDA_RUNTIME OWN CACHE STRING "OWN or LIBTORCH")
set_property(CACHE TERRACE_CUDA_RUNTIME PROPERTY STRINGS OWN LIBTORCH)
if(NOT TERRACE_CUDA_RUNTIME MATCHES "^(OWN|LIBTORCH)$")
  message(FATAL_ERROR "TERRACE_CUDA_RUNTIME is OWN or LIBTORCH, not "
    "'${TERRACE_CUDA_RUNTIME}'")
endif()
set(cuda_found FALSE)
if(TERRACE_CUDA_RUNTIME STREQUAL "LIBTORCH")
  set(TERRACE_CUDA_LIBRARY TerraceTorch::cudart)
  set(cuda_missing "${TerraceTorch_CUDA_MISSING}")
  if(TerraceTorch_CUDA_FOUND)
    set(cuda_found TRUE)
  endif()
else()
  set(TERRACE_CUDA_LIBRARY CUDA::cudart_static)
  set(cuda_missing "no CUDA toolkit, or none with cudart_static: nvcc is neither in PATH nor below CUDAToolkit_ROOT; scripts/bootstrap --cuda installs one")
  if(TARGET CUDA::cudart_static)
    set(cuda_found TRUE)
  endif()
endif()
terrace_feature(CUDA kernels/cuda/cuda_module.cc ${cuda_found}
  "${cuda_missing}")
if(CUDAToolkit_FOUND)
  message(STATUS "Terrace: CUDA's compiler is nvcc ${CUDAToolkit_VERSION}")
endif()
