# cmake -DBUILD= -DSOURCE= -DWORK= -DCOMPILER= -DGENERATOR= [-DSANITIZE=]
#   [-DTORCH_ROOT=] -P

# Runs a command that must succeed; its output is in `output`.
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code
    OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\nended with ${code}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${WORK}")
set(prefix "${WORK}/prefix")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${prefix}")

# A library that was built for a sanitiser needs its runtime in the program.
set(flags)
if(SANITIZE)
  set(flags "-DCMAKE_CXX_FLAGS=-fsanitize=${SANITIZE}")
endif()
file(MAKE_DIRECTORY "${WORK}/nvme")

# Builds and runs a program; further arguments are for its configuration.
# Three steps of AdamW at rate 0.1 with decay 0.01 and a constant gradient,
# each w = w * (1 - 0.001) - 0.1: from 1 to 0.697303.
function(run_program name)
  run("${CMAKE_COMMAND}" -S "${SOURCE}/${name}" -B "${WORK}/${name}"
    -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
    "-DCMAKE_PREFIX_PATH=${prefix}" ${flags} ${ARGN})
  run("${CMAKE_COMMAND}" --build "${WORK}/${name}")
  run("${WORK}/${name}/${name}" "${WORK}/nvme")
  if(NOT output MATCHES "weight 0\\.6973;")
    message(FATAL_ERROR "${name} said: ${output}")
  endif()
  file(GLOB left "${WORK}/nvme/*")
  if(left)
    message(FATAL_ERROR "${name} left behind: ${left}")
  endif()
endfunction()

run_program(app)
if(TORCH_ROOT)
  run_program(torch_app "-DTERRACE_TORCH_ROOT=${TORCH_ROOT}")
endif()

# What is installed stands alone: no header or package file names the tree or
# the build it came from.
file(GLOB_RECURSE installed "${prefix}/*.h" "${prefix}/*.cmake")
get_filename_component(tree "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
foreach(file IN LISTS installed)
  file(READ "${file}" text)
  foreach(folder "${tree}" "${BUILD}")
    string(FIND "${text}" "${folder}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${file} names ${folder}")
    endif()
  endforeach()
endforeach()
file(REMOVE_RECURSE "${WORK}")
