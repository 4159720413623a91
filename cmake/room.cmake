# yoke_room(NAME DEPS target... [LIBS library...])
#
# Makes the static library yoke_NAME from every .cc of the calling folder, and, with YOKE_TESTS, the test program
# yoke_NAME_test from every *_test.cc. DEPS are other rooms (their headers are seen by this room's users), LIBS are
# libraries from outside. Include paths are written from src/: #include "core/base/result.h".
function(yoke_room name)
  cmake_parse_arguments(ROOM "" "" "DEPS;LIBS;TEST_LIBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")

  set(room yoke_${name})
  if(sources)
    add_library(${room} STATIC ${sources})
    target_include_directories(${room} PUBLIC ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${room} PUBLIC ${ROOM_DEPS} ${ROOM_LIBS})
  else()
    add_library(${room} INTERFACE)
    target_include_directories(${room} INTERFACE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${room} INTERFACE ${ROOM_DEPS} ${ROOM_LIBS})
  endif()

  if(YOKE_TESTS AND tests)
    add_executable(${room}_test ${tests})
    target_link_libraries(${room}_test PRIVATE ${room} ${ROOM_TEST_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
    target_compile_definitions(${room}_test PRIVATE YOKE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    set_target_properties(${room}_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
    add_test(NAME ${name} COMMAND ${room}_test)
  endif()
endfunction()
